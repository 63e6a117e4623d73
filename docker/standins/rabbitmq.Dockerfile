# Answers to the variables of the official RabbitMQ image that compose.yaml uses, where no image can be pulled.
ARG BASE
FROM ${BASE}
RUN apt-get update -q && apt-get install -qy --no-install-recommends rabbitmq-server
COPY rabbitmq-start /
VOLUME /var/lib/rabbitmq
USER rabbitmq
ENV HOME=/var/lib/rabbitmq
ENTRYPOINT ["/rabbitmq-start"]
