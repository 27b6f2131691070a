"""Ready workflows, to use and to copy. Import name: ``areal_agent.workflows``."""
