//! What is wrong, each with a code that programs can act on; `docs/alarms.md` has an entry per code. Pure: time is an argument
//! (Unix ms).

use std::collections::BTreeMap;

/// What kind of thing is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// The store does not do what it is asked.
    StoreDown,
    /// The store was damaged when the prober started.
    StoreMended,
    /// A file that may change while the prober serves cannot be used as it is now.
    FileUnusable,
    /// An address that the configuration names was not taken over.
    AddressNotTaken,
    /// An Envoy refuses what it is sent.
    EnvoyRefuses,
    /// The health checks fail, or no token comes.
    Unhealthy,
    /// The last probe gave no result.
    ProbeFailed,
    /// The last sweep of concurrency gave no curve.
    SweepFailed,
    /// One request alone is slower than `admission.min_tps`.
    BelowFloor,
    /// Requests are, or may be, left after the deadline of a drain or removal.
    DrainOverdue,
    /// The engine tells nothing that can be used.
    NoSignals,
}

impl Code {
    /// All of them.
    pub const ALL: [Code; 11] = [
        Code::StoreDown,
        Code::StoreMended,
        Code::FileUnusable,
        Code::AddressNotTaken,
        Code::EnvoyRefuses,
        Code::Unhealthy,
        Code::ProbeFailed,
        Code::SweepFailed,
        Code::BelowFloor,
        Code::DrainOverdue,
        Code::NoSignals,
    ];

    /// The word for it in the API, in metrics and in `docs/alarms.md`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Code::StoreDown => "store_down",
            Code::StoreMended => "store_mended",
            Code::FileUnusable => "file_unusable",
            Code::AddressNotTaken => "address_not_taken",
            Code::EnvoyRefuses => "envoy_refuses",
            Code::Unhealthy => "unhealthy",
            Code::ProbeFailed => "probe_failed",
            Code::SweepFailed => "sweep_failed",
            Code::BelowFloor => "below_floor",
            Code::DrainOverdue => "drain_overdue",
            Code::NoSignals => "no_signals",
        }
    }
}

/// Whom an alarm is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The prober itself.
    Prober,
    /// An endpoint.
    Endpoint {
        /// Its id.
        id: String,
        /// Its pool.
        pool: String,
    },
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// What kind.
    pub code: Code,
    /// Of whom.
    pub subject: Subject,
    /// A sentence for people.
    pub message: String,
}

impl Alarm {
    /// About the prober itself.
    #[must_use]
    pub fn of_prober(code: Code, message: String) -> Self {
        Alarm { code, subject: Subject::Prober, message }
    }
}

/// Since when alarms hold. It forgets those that are over, so it never has more entries than there are alarms.
#[derive(Debug, Default)]
pub struct Since(BTreeMap<(Code, Subject), u64>);

impl Since {
    /// These hold now: since when each does, in their order. What is said of one subject under one code counts as one alarm,
    /// whatever the words are.
    pub fn note(&mut self, alarms: &[Alarm], now_ms: u64) -> Vec<u64> {
        let before = std::mem::take(&mut self.0);
        let since = alarms.iter().map(|alarm| {
            let key = (alarm.code, alarm.subject.clone());
            let since_ms = before.get(&key).copied().unwrap_or(now_ms);
            self.0.insert(key, since_ms);
            since_ms
        });
        since.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_that_comes_back_is_new_and_one_in_other_words_is_not() {
        let alarm = |code, message: &str| Alarm::of_prober(code, message.into());
        let mut since = Since::default();
        assert_eq!(since.note(&[alarm(Code::StoreDown, "3 changes wait")], 10), [10]);
        let both = [alarm(Code::FileUnusable, "f"), alarm(Code::StoreDown, "4 changes wait")];
        assert_eq!(since.note(&both, 20), [20, 10]);
        assert_eq!(since.note(&[], 30), Vec::<u64>::new());
        assert_eq!(since.note(&both, 40), [40, 40]);
    }

    // Whoever is woken by a code finds it there, and nothing there that no longer exists.
    #[test]
    fn every_code_has_an_entry_that_says_what_it_means_and_what_to_do() {
        let text = include_str!("../../docs/alarms.md");
        let entries: Vec<(&str, &str)> =
            text.split("\n## ").skip(1).map(|entry| entry.split_once('\n').unwrap()).collect();
        let documented: Vec<&str> = entries.iter().map(|(code, _)| *code).collect();
        assert_eq!(documented, Code::ALL.map(Code::as_str));
        for (code, entry) in entries {
            for part in ["**Means**", "**Look at**", "**Do**"] {
                assert!(entry.contains(part), "{code} has no {part}");
            }
        }
    }

    #[test]
    fn every_code_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<&str> = Code::ALL.into_iter().map(Code::as_str).collect();
        assert_eq!(words.len(), Code::ALL.len());
    }
}
