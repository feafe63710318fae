"""The numbers that multiply terms: fixed, scheduled or controlled."""
