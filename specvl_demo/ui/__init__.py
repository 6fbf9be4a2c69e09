"""The page: composition (page), handlers (behaviour), the line and the engines (serve), words
(messages).

Only this package and app.py know Gradio. The scripts and styles of the page are plain files in
assets/.
"""
