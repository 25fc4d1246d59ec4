"""The pages of the app, one module each.

Not called ``pages``: Streamlit would take the modules of such a folder for pages by itself.
"""
