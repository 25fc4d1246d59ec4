"""The animated timeline: recordings packed for it, its scripts, and pages that hold both.

The scripts (``js/``) are plain ES modules without a build step. The app shows them inside Streamlit;
``kvsim render`` and ``kvsim.display`` put them on pages of their own. Nothing here needs more than numpy.
"""
