# The demo as an image: one non-root user, weights included, nothing fetched at run time.
#   docker build -t specvl-demo .        (--build-arg TORCH_INDEX=… takes torch from that index, e.g. one of CPU builds)
#   docker run --rm -p 7860:7860 --read-only --tmpfs /tmp specvl-demo
FROM python:3.11-slim

ARG TORCH=2.13.0
ARG TORCH_INDEX=

RUN useradd --create-home --uid 1000 user
USER user
ENV HOME=/home/user \
    PATH=/home/user/.local/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    HF_HOME=/tmp/huggingface \
    GRADIO_TEMP_DIR=/tmp/gradio \
    GRADIO_ANALYTICS_ENABLED=False \
    GRADIO_SSR_MODE=False

WORKDIR /home/user/app

# Requirements first: a change of the code then rebuilds in seconds.
COPY --chown=user requirements.txt .
RUN if [ -n "$TORCH_INDEX" ]; then pip install "torch==$TORCH" --index-url "$TORCH_INDEX"; \
    else pip install "torch==$TORCH+cpu" || pip install "torch==$TORCH"; fi \
 && pip install "torch==$TORCH" -r requirements.txt

COPY --chown=user . .

EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7860/gradio_api/startup-events', timeout=4)"]

CMD ["python", "app.py", "--host", "0.0.0.0", "--port", "7860"]
