"""RabbitMQ, the doorbell: what relay and consumer share of it. No job may ever need anything here to run."""
