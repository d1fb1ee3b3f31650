//! What a plugin may take, and the most that any setting can grant.

use super::HostError;
use std::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Of an endpoint's configuration, as the JSON text that is handed over: `input_too_large`.
pub const CONFIG_BYTES_MAX: usize = 64 * KIB;

/// The limits of one tenant's plugins. What breaks one is a fault of the kind that is named here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of a component, at load.
    pub component_bytes_max: usize,
    /// Processor time of a call: `deadline`.
    pub call_time_max: Duration,
    /// All linear memories of an instance together: `memory`.
    pub memory_bytes_max: usize,
    /// Of the payload that `transform` is given: `input_too_large`.
    pub input_bytes_max: usize,
    /// Of the body that `classify` is given. It is cut, and told so.
    pub response_bytes_max: usize,
    /// Of what a call gives back, counted as the host holds it: `output_too_large`.
    pub output_bytes_max: usize,
    /// Headers that `transform` may set: `output_too_large`.
    pub headers_max: usize,
    /// Their names and values together: `output_too_large`.
    pub header_bytes_max: usize,
    /// Lines kept of a call's log; the others are counted.
    pub log_lines_max: usize,
    /// What is kept of one line.
    pub log_line_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            component_bytes_max: 4 * MIB,
            call_time_max: Duration::from_millis(100),
            memory_bytes_max: 32 * MIB,
            input_bytes_max: 256 * KIB,
            response_bytes_max: 16 * KIB,
            output_bytes_max: MIB,
            headers_max: 64,
            header_bytes_max: 8 * KIB,
            log_lines_max: 32,
            log_line_bytes_max: KIB,
        }
    }
}

impl Limits {
    /// What no setting can go beyond.
    pub const CAPS: Limits = Limits {
        component_bytes_max: 32 * MIB,
        call_time_max: Duration::from_secs(1),
        memory_bytes_max: 128 * MIB,
        input_bytes_max: MIB,
        response_bytes_max: 64 * KIB,
        output_bytes_max: 4 * MIB,
        headers_max: 64,
        header_bytes_max: 8 * KIB,
        log_lines_max: 256,
        log_line_bytes_max: KIB,
    };

    /// Each by its name. A field that is missing here does not compile.
    pub(super) fn rows(&self) -> [(&'static str, usize); 10] {
        let Limits {
            component_bytes_max,
            call_time_max,
            memory_bytes_max,
            input_bytes_max,
            response_bytes_max,
            output_bytes_max,
            headers_max,
            header_bytes_max,
            log_lines_max,
            log_line_bytes_max,
        } = *self;
        [
            ("component_bytes_max", component_bytes_max),
            ("call_time_max (milliseconds)", millis(call_time_max)),
            ("memory_bytes_max", memory_bytes_max),
            ("input_bytes_max", input_bytes_max),
            ("response_bytes_max", response_bytes_max),
            ("output_bytes_max", output_bytes_max),
            ("headers_max", headers_max),
            ("header_bytes_max", header_bytes_max),
            ("log_lines_max", log_lines_max),
            ("log_line_bytes_max", log_line_bytes_max),
        ]
    }

    /// Every limit must be above zero and within [`Limits::CAPS`].
    pub fn check(&self) -> Result<(), HostError> {
        let rows = self.rows().into_iter().zip(Self::CAPS.rows());
        rows.into_iter().try_for_each(|((field, given), (_, cap))| within(field, given, cap))
    }
}

pub(super) fn millis(span: Duration) -> usize {
    usize::try_from(span.as_millis()).unwrap_or(usize::MAX)
}

/// `given` must be from 1 to `cap`.
pub(super) fn within(field: &'static str, given: usize, cap: usize) -> Result<(), HostError> {
    if (1..=cap).contains(&given) { Ok(()) } else { Err(HostError::Limit { field, given, cap }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_caps_are_allowed_and_nothing_beyond() {
        assert_eq!(Limits::default().check().map_err(|e| e.to_string()), Ok(()));
        assert_eq!(Limits::CAPS.check().map_err(|e| e.to_string()), Ok(()));
        type Field = fn(&mut Limits) -> &mut usize;
        let fields: [Field; 9] = [
            |l| &mut l.component_bytes_max,
            |l| &mut l.memory_bytes_max,
            |l| &mut l.input_bytes_max,
            |l| &mut l.response_bytes_max,
            |l| &mut l.output_bytes_max,
            |l| &mut l.headers_max,
            |l| &mut l.header_bytes_max,
            |l| &mut l.log_lines_max,
            |l| &mut l.log_line_bytes_max,
        ];
        for field in fields {
            let mut over = Limits::CAPS;
            *field(&mut over) += 1;
            assert!(matches!(over.check(), Err(HostError::Limit { .. })));
            let mut none = Limits::default();
            *field(&mut none) = 0;
            assert!(matches!(none.check(), Err(HostError::Limit { .. })));
        }
        let long = Limits { call_time_max: Duration::from_millis(1001), ..Limits::default() };
        let error = long.check().map_err(|e| e.to_string()).unwrap_err();
        assert!(error.contains("call_time_max") && error.contains("1001") && error.contains("1000"), "{error}");
    }
}
