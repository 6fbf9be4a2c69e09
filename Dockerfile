# The demo as an image: one non-root user, the pocket weights included, a volume for what the hub gives.
#   docker build -t specvl-demo .                                       for CPUs
#   docker build -t specvl-demo --build-arg ACCELERATOR=cuda .          for NVIDIA GPUs; run with --gpus all
#   docker run --rm -p 7860:7860 -v specvl-hub:/home/user/.cache/huggingface specvl-demo
#   docker run --rm -p 7860:7860 --read-only --tmpfs /tmp specvl-demo   the pocket pair needs no cache
#   docker run --rm -p 7860:7860 --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     -v ./logins.txt:/run/logins.txt:ro specvl-demo python app.py --host 0.0.0.0 --login-file /run/logins.txt
#                                                                       a line user:password each
# Nothing is installed with apt: the compiler is another image's, and the wheel of opencv-python-headless
# brings its own libraries and needs nothing beyond libc, libstdc++ and zlib, which the slim image has.
# BASE may name one image by its digest: python:3.11-slim@sha256:…
ARG BASE=python:3.11-slim
# An image with a C compiler.
ARG BUILDER=python:3.11
FROM $BUILDER AS kernels
WORKDIR /kernels
COPY specvl_demo/native/build_kernels.py specvl_demo/native/kernels.c specvl_demo/native/vectors.h ./
RUN python build_kernels.py built || mkdir -p built

FROM $BASE

# cpu: the build without CUDA, a tenth of the size. cuda: the plain wheel, which brings CUDA; only the host's
# driver is needed then.
ARG ACCELERATOR=cpu
# An index to take torch from instead, e.g. a mirror.
ARG TORCH_INDEX=
# What else to install: "ray" for several workers, "bitsandbytes" for 8 and 4 bits.
ARG EXTRAS=

RUN useradd --create-home --uid 1000 user
USER user
# All that is written besides the hub's cache goes below /tmp: the file system may be read-only but for these two.
ENV HOME=/home/user \
    PATH=/home/user/.local/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_USER=1 \
    HF_HOME=/home/user/.cache/huggingface \
    SPECVL_CACHE=/home/user/.cache/specvl-demo \
    GRADIO_TEMP_DIR=/tmp/gradio \
    XDG_CACHE_HOME=/tmp/cache \
    MPLCONFIGDIR=/tmp/cache/matplotlib \
    TORCHINDUCTOR_CACHE_DIR=/tmp/cache/inductor \
    TRITON_CACHE_DIR=/tmp/cache/triton \
    GRADIO_ANALYTICS_ENABLED=False \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

WORKDIR /home/user/app

# Requirements first: a change of the code then rebuilds in seconds.
COPY --chown=user requirements.txt tools/install_torch.py ./
RUN python install_torch.py --index "$TORCH_INDEX" --accelerator "$ACCELERATOR" \
 && pip install -r requirements.txt $EXTRAS \
 && rm install_torch.py

COPY --chown=user . .
COPY --chown=user --from=kernels /kernels/built/ /home/user/.cache/specvl-demo/

# The language model under the photo pair, 93 MB, unpacked to 580; without it the drawn-scene pair is served.
RUN python -m specvl_demo fetch photo || echo "The drawn-scene pair is served."

# Made here, so that a volume mounted over it belongs to this user.
RUN mkdir -p "$HF_HOME"
VOLUME /home/user/.cache/huggingface

EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7860/gradio_api/startup-events', timeout=4)"]

CMD ["python", "app.py", "--host", "0.0.0.0", "--port", "7860"]
