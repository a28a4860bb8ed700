//! What others say about a pool's endpoints: the engines through their metrics, exporters, the other Envoys, and what
//! earlier answers have shown on average.
//!
//! Everything may be missing, and by default is: own counts do without. A value that stands here is one that can be
//! reckoned with, because [`Share`] and [`Amount`] hold nothing else; what a metric says that makes no sense (NaN, negative)
//! is a missing signal, and never a zero.

/// A part of a whole, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd)]
pub struct Share(f32);

impl Share {
    /// From what a metric says. Above 1 counts as 1 (engines round); negative, infinite or no number is `None`.
    #[must_use]
    pub fn try_new(value: f64) -> Option<Self> {
        Amount::try_new(value).map(|Amount(value)| Share(value.min(1.0)))
    }

    /// The value, 0 to 1.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0.into()
    }
}

/// A quantity of at least 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd)]
pub struct Amount(f32);

impl Amount {
    /// From what a metric says; negative, infinite or no number is `None`.
    #[must_use]
    pub fn try_new(value: f64) -> Option<Self> {
        let value = value as f32;
        (value.is_finite() && value >= 0.0).then_some(Amount(value.abs()))
    }

    /// The value.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0.into()
    }
}

/// What is said about one endpoint. The default says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Signals {
    /// Requests that other Envoys have in flight there.
    pub others: u32,
    /// Tokens that those still have to compute or generate.
    pub others_tokens: u32,
    /// Requests that the engine has beyond those of all Envoys.
    pub outside: u32,
    /// Requests that wait inside the engine for a place in its batch.
    pub waiting: Option<u32>,
    /// How full its KV cache is.
    pub kv: Option<Share>,
    /// How busy its GPU is.
    pub gpu: Option<Share>,
    /// Moving average of the time to the first token, in ms.
    pub ttft_ms: Option<Amount>,
    /// Moving average from the decision to the end of the answer, in ms.
    pub e2e_ms: Option<Amount>,
    /// Moving average of the tokens/s of one request.
    pub tps: Option<Amount>,
    /// Moving average of the share of requests that failed.
    pub errors: Option<Share>,
}

impl Signals {
    /// Requests in flight there that are not in this Envoy's live table.
    #[must_use]
    pub fn elsewhere(&self) -> u32 {
        self.others.saturating_add(self.outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_missing() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 1e300] {
            assert_eq!((Share::try_new(value), Amount::try_new(value)), (None, None), "{value}");
        }
        assert_eq!(Share::try_new(1.0001).map(Share::get), Some(1.0));
        assert_eq!(Share::try_new(0.25).map(Share::get), Some(0.25));
        assert_eq!(Amount::try_new(-0.0).map(|amount| amount.get().is_sign_positive()), Some(true));
    }
}
