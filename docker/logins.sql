-- For psql 14 or newer, as a superuser, after `bellwire migrate`; may be run again to change a password.
-- The passwords come by the environment, so that they are on no command line and in no file.
\getenv relay RELAY_PASSWORD
\getenv consumer CONSUMER_PASSWORD
\getenv statements STATEMENTS_PASSWORD

SELECT NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'statements_shop') AS missing \gset
\if :missing
CREATE ROLE statements_shop LOGIN;
\endif
GRANT bellwire_application TO statements_shop;

ALTER ROLE bellwire_relay PASSWORD :'relay';
ALTER ROLE bellwire_consumer PASSWORD :'consumer';
ALTER ROLE statements_shop PASSWORD :'statements';
