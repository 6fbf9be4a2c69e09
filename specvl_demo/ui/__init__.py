"""The page: composition (page), queue and engines (serve), sentences (messages). Only this package
uses Gradio. The page's scripts and styles are plain files in assets/.
"""
