"""The tables as SQLAlchemy Core sees them: for reads and for policy, never for an edge.

The migrations are the truth; a test reflects a migrated database and holds this page equal to it, column by
column. Indexes, checks and defaults are not repeated here, because nothing here creates a table.
"""

from sqlalchemy import (
    ARRAY,
    TIMESTAMP,
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import INTERVAL, JSONB

metadata = MetaData(schema="bellwire")
_AT = TIMESTAMP(timezone=True)
