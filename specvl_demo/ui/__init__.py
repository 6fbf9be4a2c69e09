"""The page: composition (page), handlers (behaviour), who computes when (desk), who computes (worker), words.

Only this package and app.py know Gradio. The scripts and styles of the page are plain files in assets/.
"""
