# The course in a container. The README says how to build and run it.
FROM python:3.12-slim-bookworm AS tools
# make and git for the clone in a dev container, and g++ because torch.compile builds C++ kernels.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --no-install-recommends --yes g++ git make && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir uv==0.13.9 \
    && useradd --uid 1000 --create-home learner
USER 1000

FROM tools
ARG TORCH_BACKEND=cpu
WORKDIR /home/learner/source
COPY --chown=1000 . .
RUN uv venv --quiet /home/learner/venv \
    && uv pip install --python /home/learner/venv/bin/python --no-cache --torch-backend "$TORCH_BACKEND" \
       --constraint constraints.txt '.[lab]' \
    && mkdir --parents /home/learner/course /home/learner/.jupyter \
    # --publish decides who reaches the container, so the server listens on all of its addresses.
    && echo '{"ServerApp": {"ip": "0.0.0.0"}}' > /home/learner/.jupyter/jupyter_server_config.json
ENV PATH=/home/learner/venv/bin:$PATH
WORKDIR /home/learner/course
EXPOSE 8888
CMD ["cs336", "lab", "--no-browser"]
