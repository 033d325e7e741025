//! The reverse tunnel's carrier: an agent dials out, and the hub sends requests to it over that connection.
