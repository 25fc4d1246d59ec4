"""The Streamlit web UI of kvsim."""
