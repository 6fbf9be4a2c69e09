"""The page: composition (page), handlers (behaviour), queue and engines (serve), sentences
(messages).

Only this package uses Gradio. The scripts and styles of the page are plain files in assets/.
"""
