"""What ``fedkad-agent`` does beside running the agent, one module for each subcommand or two."""
