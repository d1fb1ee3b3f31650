//! The sources' schemes with their secrets, for whoever wants to know why a request does not verify.

use crate::admin::{Examiner, Posed};
use crate::delivery::Name;
use crate::ingress::Ingress;
use crate::verify::Step;
use std::sync::Arc;

pub(super) struct Examining(pub(super) Arc<Ingress>);

impl Examiner for Examining {
    fn explain(&self, tenant: &Name, source: &Name, posed: &Posed) -> Option<Vec<Step>> {
        let Posed { method, url, headers, body, received_at } = posed;
        self.0.explain((tenant, source), (method, url.as_deref()), headers, body, *received_at)
    }
}
