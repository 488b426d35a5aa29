"""A storm: 500 executors on one database, with kill -9, drains and new tenants."""
