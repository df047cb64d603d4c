"""The local web page: what it computes (``workshop``), what it says (``views``), and Gradio around both (``page``)."""
