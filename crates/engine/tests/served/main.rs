//! The engine as its clients see it: a real server on loopback, a small random model, real requests.

mod aborts;
mod ends;
mod limits;
mod live;
mod log_probs;
mod prefix_cache;
mod samples;
mod shapes;
mod transformers;
mod updates;
