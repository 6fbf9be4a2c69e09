"""The page: composition (page), handlers (behaviour), the line and the engines (serve), words
(messages).

Only this package knows Gradio. The scripts and styles of the page are plain files in
assets/.
"""
