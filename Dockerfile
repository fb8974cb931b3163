# dgcl on CPUs:  docker build -t dgcl .  &&  docker run --rm dgcl dgcl info --check
# Not built by a test: the machines that test this have no container runtime.
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/dgcl
COPY . .
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "$TORCH_INDEX" . \
 && dgcl warmup
# Ranks on several hosts connect by Gloo; name the interface of the container's network.
ENV GLOO_SOCKET_IFNAME=eth0
CMD ["dgcl", "--help"]
