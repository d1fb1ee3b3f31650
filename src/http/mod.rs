//! The HTTP edge of both listeners: connections, their limits, and how errors are told.
//!
//! [`serve`] owns the sockets. Every byte passes a gate that knows where requests begin and end, and refuses what RFC
//! 9112 calls an error or leaves to the recipient, before the HTTP library can make something of it. Authoritative for
//! sizes and times is the gate; the library's own limits stand behind it.

mod answer;
mod body;
mod chunked;
mod gate;
mod head;
mod listener;
mod problem;

pub use answer::{Answer, AnswerBody, Broken};
pub use body::{BodyFault, Budget, Reservation, collect};
pub use listener::{Connection, Handler, Limits, serve};
pub use problem::Problem;
