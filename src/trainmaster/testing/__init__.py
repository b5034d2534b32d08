"""Builders and executable contracts for policies, backends and stores."""
