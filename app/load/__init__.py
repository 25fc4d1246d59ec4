"""Many users at once, without browsers: ``session`` (one user, who speaks Streamlit's protocol), ``users`` (what
each kind of user does, and the answer that must be theirs), ``crowd`` (all of them on one server, timed).
"""
