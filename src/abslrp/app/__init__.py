"""The local web page: what it computes (``workshop``), shows (``views``) and does (``actions``), and Gradio around them (``page``)."""
