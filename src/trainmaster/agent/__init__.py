"""The agent's side of a job's members: who is connected, who belongs, who has joined. Standard library only."""
