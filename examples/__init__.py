"""Programs that use Bellwire as an application would: through its public names only."""
