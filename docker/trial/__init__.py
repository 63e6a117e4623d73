"""What docker/try runs. Standard library only: it must work before anything of ours is installed."""
