//! Replicas.
