-- What is known of hints, and of who can publish and hear them.

-- When the hint was last published again; null until then.
ALTER TABLE bellwire.outbox ADD COLUMN published_at timestamptz;
-- Why the relay's broker is not well, and since when it is as broker_well says (null: no broker was given).
ALTER TABLE bellwire.relay ADD COLUMN broker_error text, ADD COLUMN broker_since timestamptz;
-- Whether the broker has the consumer registered (null: no broker was given), and why not.
ALTER TABLE bellwire.consumer ADD COLUMN hears boolean, ADD COLUMN hears_error text;

-- Its rows have two more columns, which CREATE OR REPLACE refuses.
DROP FUNCTION IF EXISTS bellwire.admit(uuid, uuid, text[], smallint[], integer[], boolean);
