# Answers to the variables of the official PostgreSQL image that compose.yaml uses, where no image can be pulled.
ARG BASE
FROM ${BASE}
# Only the programs are wanted, not the cluster that Debian makes.
RUN mkdir -p /etc/postgresql-common \
    && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf \
    && apt-get update -q && apt-get install -qy --no-install-recommends postgresql \
    && ln -s /usr/lib/postgresql/*/bin /opt/postgresql \
    && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data
ENV PATH="/opt/postgresql:${PATH}" PGDATA=/var/lib/postgresql/data POSTGRES_USER=postgres
COPY postgres-start /
VOLUME /var/lib/postgresql/data
USER postgres
STOPSIGNAL SIGINT
ENTRYPOINT ["/postgres-start"]
