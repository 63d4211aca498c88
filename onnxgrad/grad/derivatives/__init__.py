"""Programs that multiply by a derivative: J v, H v, Jacobians, and CasADi's files."""
