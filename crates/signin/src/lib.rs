//! Sign-in for web pages and programs: OIDC, Kubernetes tokens and one-time tokens.
