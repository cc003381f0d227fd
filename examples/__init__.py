"""Example programs of Paceline."""
