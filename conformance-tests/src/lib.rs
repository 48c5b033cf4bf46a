//! The conformance suite for lock stores: implement one harness, call one macro, prove your store.
//!
//! A whole in-house store is in `lock-kv/examples/custom_backend`, its harness in
//! `lock-kv/tests/conformance.rs`; the line that makes the tests is `conformance_tests::suite!(MyHarness);`.
//!
//! Each case becomes a named `#[test]`, in a module per kind of fault. The suite knows only
//! `lock-core`; what it finds wrong with a store is told by the failing test: its name, one line of
//! what it proves, and what was seen.
//!
//! Environment: `LOCK_TEST_TIER` (`ci`, `full`), `LOCK_TEST_SEED` (a number, printed by each failing
//! case), `LOCK_TEST_TIMES` (a file to which each case appends its time).

pub mod bench;
mod candidate;
mod case;
mod cases;
mod catalogue;
pub mod chaos;
mod cx;
mod harness;
pub mod history;
pub mod runner;
pub mod servers;
mod table;
mod victim;

pub use case::{Case, Tier, Verdict, judge, judge_runner};
pub use catalogue::{BACKENDS, Catalogue, Cell, FieldCase};
pub use harness::{Answer, Harness, Stop};

#[doc(hidden)]
pub use case::run;
#[doc(hidden)]
pub use victim::victim;

#[doc(hidden)]
#[macro_export]
macro_rules! __registry {
    ($($section:ident { $([$($number:literal),*] $tier:ident $case:ident $proves:literal;)* })*) => {
        /// Every case, in the order of the field cases.
        pub static CASES: &[Case] = &[$($(
            Case::new(
                concat!(stringify!($section), "::", stringify!($case)),
                &[$($number),*],
                Tier::$tier,
                $proves,
                |cx| Box::pin(cases::$section::$case(cx)),
            ),
        )*)*];
    };
}

__cases!(__registry);

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ($($section:ident { $([$($number:literal),*] $tier:ident $case:ident $proves:literal;)* })*) => {
        $(mod $section { $(
            #[test]
            fn $case() {
                super::__run(concat!(stringify!($section), "::", stringify!($case)));
            }
        )* })*
    };
}

/// Makes a `#[test]` of each case for the store of this [`Harness`].
///
/// Call it at the root of a test file, or inside a module when one file tests several stores.
#[macro_export]
macro_rules! suite {
    ($harness:ty) => {
        fn __run(case: &str) {
            $crate::run::<$harness>(case, module_path!());
        }
        /// What a child process runs: this test program again, armed by its environment.
        #[test]
        #[ignore = "run by cases that need another process"]
        fn victim() {
            $crate::victim::<$harness>();
        }
        $crate::__cases!(__tests);
    };
}

/// Makes a test `elections` that runs whole elections under faults over the store of this [`Harness`]: each scenario of
/// [`chaos`] that needs no server of ours, for 10 s (60 s in the tier `full`).
///
/// Call it where [`suite!`] is called. The harness must answer `locator` and `open_at`: candidates are processes.
#[macro_export]
macro_rules! elections {
    ($harness:ty) => {
        #[test]
        fn elections() {
            $crate::chaos::elections_of::<$harness>(module_path!());
        }
        /// What a child process runs: this test program again, armed by its environment.
        #[test]
        #[ignore = "run by elections"]
        fn candidate() {
            $crate::chaos::candidate_of::<$harness>();
        }
    };
}
