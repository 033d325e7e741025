//! Both ends over real TLS WebSockets on the loopback interface.

mod certificates;
mod hub;
mod interruptions;
mod limits;
mod network;
mod refusals;
mod requests;
mod service;
mod upgrades;
