# bsmeta with what requirements.txt names, which is all but the extras bootleg, lora, fast, cluster,
# downstream and trackers, and the word lists of spelling. CPU by default; for GPUs, name the index of
# torch's CUDA builds:
#
#   docker build -t bsmeta .
#   docker build -t bsmeta:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#   docker run --rm -v bsmeta-runs:/home/bsmeta/runs bsmeta train --config-name demo out_dir=runs/first
FROM python:3.11-slim-bookworm

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# DeepSpeed compiles a small op, with a C++ compiler and ninja.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/bsmeta
COPY requirements.txt ./
# torch first: DeepSpeed looks for it while it is being built.
RUN grep '^torch==' requirements.txt >torch.txt \
    && pip install --no-cache-dir --index-url "$TORCH_INDEX" -r torch.txt \
    && pip install --no-cache-dir -r requirements.txt

COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --create-home --uid 10001 bsmeta \
    && mkdir /home/bsmeta/runs \
    && chown bsmeta /home/bsmeta/runs

USER 10001
WORKDIR /home/bsmeta
ENV TORCH_EXTENSIONS_DIR=/home/bsmeta/.cache/torch_extensions
RUN python -c 'from bsmeta.training.ranks.distributed_op import prepare_cpu_op; prepare_cpu_op()'
ENTRYPOINT ["bsmeta"]
CMD ["--help"]
