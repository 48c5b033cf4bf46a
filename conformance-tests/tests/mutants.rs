//! The suite is proven: each fault, planted in a store that is right otherwise, is caught by a case
//! that is named here. The list in `README.md` is made from this one; set
//! `LOCK_REWRITE=1` to write it again.

#![allow(clippy::unwrap_used, reason = "a test program")]

#[path = "mutants/runner.rs"]
mod runner;
#[path = "mutants/store.rs"]
mod store;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use conformance_tests::{CASES, Case, Tier, Verdict, judge, judge_runner};
use runner::{Flaw, Plain};
use store::Broken;

/// The store without a fault.
const RIGHT: usize = 0;

macro_rules! faults {
    ($($fault:ident $what:literal $case:literal;)*) => {
        /// What is wrong with a store.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Fault {
            #[allow(dead_code, reason = "keeps 0 for the store that is right")]
            None,
            $($fault,)*
        }

        /// Each fault: its name, what is wrong, the case that must catch it, and the run of a case.
        const FAULTS: &[(&str, &str, &str, Judge)] = &[$((
            stringify!($fault),
            $what,
            $case,
            judge::<Broken<{ Fault::$fault as usize }>>,
        ),)*];
    };
}

type Judge = fn(&'static Case, &'static str) -> Verdict;

faults! {
    RenewIgnoresTheNonce "a renewal does not test the nonce" "c_renewal::nonce_and_token_must_both_match";
    RenewIgnoresTheToken "a renewal does not test the token" "c_renewal::nonce_and_token_must_both_match";
    RenewRevivesTheExpired "a renewal revives an expired lease" "c_renewal::expired_is_never_revived";
    RenewalDoesNotExtend "a renewal does not restart the countdown" "c_renewal::renewal_restarts_the_countdown";
    RenewalChangesTheToken "a renewal changes the token" "k_tokens::renewals_keep_the_token";
    BatchIsAnsweredInTheOrderOfNames "the answers of a batch come in another order" "c_renewal::batch_answers_each_lease_in_order";
    OneBadEntryFailsTheBatch "one entry that is gone fails its whole batch" "c_renewal::batch_answers_each_lease_in_order";
    ReleaseChecksNoOwner "a release frees whoever holds it" "c_renewal::taken_over_is_gone_and_untouched";
    ReleaseExtends "a release writes an expiry in the future" "e_release::released_once_then_not_held";
    ReleaseWakesNobody "a release tells no waiter" "j_wakeups::a_release_ends_the_wait";
    WithdrawLeavesTheEntry "a withdrawn grant stays" "e_release::withdraw_leaves_nothing";
    SweepRemovesTheHeld "a sweep removes held entries" "e_release::sweep_removes_the_unused_only";
    SweepForgetsTheTokens "after a sweep the tokens start again" "e_release::sweep_removes_the_unused_only";
    TokenStartsAgainAfterRelease "a release resets the token" "k_tokens::tokens_grow_over_everything";
    TokenRepeats "every grant has the same token" "k_tokens::tokens_grow_over_everything";
    DeniedTryBurnsAToken "a denied try changes the holder's token" "k_tokens::denied_tries_change_nothing";
    RevokeBurnsNoToken "a revocation fences nobody" "contract::revoke_burns_a_token";
    ClientClockDecides "the client's clock decides what has expired" "a_clock::remaining_is_what_is_left";
    ExpiryIsRoundedDown "the ttl is rounded down to whole seconds" "a_clock::lease_lasts_as_long_as_granted";
    TtlIsCutSilently "a ttl that is too long is cut without a word" "a_clock::ttl_out_of_range_is_refused_or_kept";
    RemainingIsRoundedDown "the remaining time is rounded down" "a_clock::remaining_is_what_is_left";
    NeverExpires "an entry has no expiry" "b_lease::a_lease_long_expired_is_taken_at_once";
    TakersTtlCounts "the taker's ttl decides, not the holder's" "b_lease::the_holders_ttl_counts";
    NamesFoldCase "names are compared without case" "i_names::byte_for_byte";
    NamesAreTruncated "names are cut after 64 bytes" "i_names::long_names_do_not_collide";
    OwnerTextDecides "the owner text decides who holds it" "i_names::the_owner_text_decides_nothing";
    MetadataIsLost "metadata is not stored" "contract::observe_tells_each_state";
    RepeatedTryGetsANewToken "repeating a granted claim gives a new token" "contract::same_nonce_same_token";
    RepeatedTryKeepsTheOldExpiry "repeating a granted claim gives no full ttl" "contract::same_nonce_same_token";
    OldNonceRevivesItsTerm "a nonce goes on with its old token after the expiry" "contract::same_nonce_after_expiry_is_a_new_term";
    OnceStaysInTheQueue "a denied claim of mode once is granted later" "contract::once_leaves_no_entry";
    AcquireReadsThenWrites "a try reads and writes in two steps" "contract::one_of_many_racing_claims_wins";
    WaitLooksBeforeItListens "a wait looks first and listens second" "j_wakeups::no_release_falls_between_try_and_wait";
    WaitNeverLooks "a wait listens only" "j_wakeups::no_release_falls_between_try_and_wait";
    WatchTellsNothing "a watch never resolves although there is push" "j_wakeups::watch_tells_of_each_change";
    RequestReachesTheNextTerm "a wish goes to the next holder" "contract::requests_reach_the_holder";
    RequestIsToldOnce "a wish is lost with the answer that carries it" "contract::requests_reach_the_holder";
    ListFoldsCase "a list compares prefixes without case" "contract::list_is_exact_and_ordered";
    IfUnchangedIsIgnored "the condition of a takeover is ignored" "contract::if_unchanged_is_tested_in_the_store";
    MinTokenIsIgnored "the least token is ignored" "contract::min_token_is_kept";
    VersionNeverChanges "every entry has the same version" "contract::versions_change";
    CloseIsIgnored "a closed client goes on" "contract::closed_is_closed";
    BlockedEntryDelaysTheBatch "a locked entry delays the whole batch" "c_renewal::a_blocked_entry_delays_no_other";
    RestartForgetsTheLeases "a restart of the server forgets the leases" "h_restart::a_short_restart_costs_no_term";
    DroppedCallBlocksTheNext "a call that is dropped midway blocks the next" "g_cancellation::dropped_calls_leave_the_store_usable";
}

/// Each flaw of a candidate: what is wrong and the case that must catch it.
const FLAWS: &[(Flaw, &str, &str)] = &[
    (
        Flaw::RenewalHangsWithTheTimer,
        "a renewal that hangs keeps the leader from looking at the time",
        "c_renewal::hanging_renewals_lose_in_time",
    ),
    (
        Flaw::RenewerDies,
        "the renewer dies of an error and the work goes on",
        "c_renewal::failing_renewals_lose_in_time",
    ),
    (
        Flaw::LossNeedsAnAnswer,
        "only an answer of the store ends a term, no error and no deadline",
        "c_renewal::failing_renewals_lose_in_time",
    ),
    (
        Flaw::OneFailureDropsTheLease,
        "one failed renewal gives up a lease with time left",
        "c_renewal::one_bad_renewal_loses_nothing",
    ),
    (
        Flaw::WorkGoesOnAfterTheTerm,
        "the work is not stopped on loss and runs twice after the next election",
        "c_renewal::failing_renewals_lose_in_time",
    ),
    (
        Flaw::ReleasedBeforeTheWorkStops,
        "the lease is released before the work has stopped",
        "e_release::work_ends_before_the_lease_does",
    ),
    (
        Flaw::NoReleaseAtShutdown,
        "a shutdown releases nothing",
        "e_release::work_ends_before_the_lease_does",
    ),
    (
        Flaw::NoStoreRunsWithoutElection,
        "the work runs without an election when the store cannot be used",
        "n_start::no_store_no_leader",
    ),
    (
        Flaw::FirstFailureIsForEver,
        "after a first failure there is no leader until a restart",
        "n_start::no_store_no_leader",
    ),
    (
        Flaw::SharedIdentity,
        "an identity that all share makes everybody leader",
        "i_names::one_identity_one_leader",
    ),
    (
        Flaw::FailedWorkKeepsTheLead,
        "work that fails leaves a leader without work",
        "c_renewal::work_that_ends_frees_the_lease",
    ),
    (
        Flaw::FirstTryAfterAnInterval,
        "the first try comes after a whole interval",
        "n_start::the_first_try_is_at_once",
    ),
    (
        Flaw::DeadlineFromTheAnswer,
        "the deadline counts from the answer",
        "b_lease::validity_counts_from_the_send",
    ),
    (
        Flaw::StandbyRunsTheWorkAtShutdown,
        "a standby that is shut down runs the work",
        "n_start::a_standby_that_stops_never_led",
    ),
];

fn judge_flaw(flaw: Flaw, case: &'static str) -> Verdict {
    let case = Case::named(case).unwrap_or_else(|| panic!("{flaw:?}: no case {case}"));
    assert_eq!(case.tier, Tier::Ci, "{flaw:?}: caught in the short tier");
    judge_runner::<Broken<RIGHT>>(case, "", Arc::new(Plain(flaw)))
}

fn in_threads<T: Send + 'static>(
    work: impl IntoIterator<Item = impl FnOnce() -> T + Send + 'static>,
) -> Vec<T> {
    #[allow(
        clippy::needless_collect,
        reason = "all must run before the first is waited for"
    )]
    let running: Vec<JoinHandle<T>> = work.into_iter().map(std::thread::spawn).collect();
    running.into_iter().map(|t| t.join().unwrap()).collect()
}

#[test]
fn the_store_without_a_fault_passes() {
    let verdicts = in_threads(
        CASES
            .iter()
            .map(|case| move || (case.name, judge::<Broken<RIGHT>>(case, ""))),
    );
    let wrong: Vec<_> = verdicts
        .into_iter()
        .filter(|(_, verdict)| matches!(verdict, Verdict::Failed(_)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_fault_is_caught_by_its_case() {
    let verdicts = in_threads(FAULTS.iter().map(|(fault, _, case, judge)| {
        move || {
            let case = Case::named(case).unwrap_or_else(|| panic!("{fault}: no case {case}"));
            assert_eq!(case.tier, Tier::Ci, "{fault}: caught in the short tier");
            (fault, case.name, judge(case, ""))
        }
    }));
    let missed: Vec<_> = verdicts
        .iter()
        .filter(|(_, _, verdict)| !matches!(verdict, Verdict::Failed(_)))
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:#?}");
    for (fault, case, verdict) in verdicts {
        println!("{fault}: {case}: {verdict:?}");
    }
}

/// Proves that a flaw is caught for what it is: the same loop without it passes the same case.
#[test]
fn the_candidate_without_a_flaw_passes() {
    let cases: std::collections::BTreeSet<_> = FLAWS.iter().map(|(_, _, case)| *case).collect();
    let verdicts = in_threads(
        cases
            .into_iter()
            .map(|case| move || (case, judge_flaw(Flaw::None, case))),
    );
    let wrong: Vec<_> = verdicts
        .into_iter()
        .filter(|(_, verdict)| *verdict != Verdict::Passed)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_flaw_is_caught_by_its_case() {
    let verdicts = in_threads(
        FLAWS
            .iter()
            .map(|(flaw, _, case)| move || (*flaw, *case, judge_flaw(*flaw, case))),
    );
    let missed: Vec<_> = verdicts
        .iter()
        .filter(|(_, _, verdict)| !matches!(verdict, Verdict::Failed(_)))
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:#?}");
    for (flaw, case, verdict) in verdicts {
        println!("{flaw:?}: {case}: {verdict:?}");
    }
}

#[test]
fn the_list_in_the_readme_is_fresh() {
    const BEGIN: &str = "<!-- mutants: made by tests/mutants.rs -->\n";
    const END: &str = "<!-- end of mutants -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the README has the list");
    let (_, after) = rest.split_once(END).expect("the list has an end");
    let mut list = String::from("| fault | caught by |\n|---|---|\n");
    for (_, what, case, _) in FAULTS {
        list.push_str(&format!("| {what} | `{case}` |\n"));
    }
    for (_, what, case) in FLAWS {
        list.push_str(&format!("| {what} | `{case}` |\n"));
    }
    let fresh = format!("{before}{BEGIN}{list}{END}{after}");
    if std::env::var_os("LOCK_REWRITE").is_some() {
        std::fs::write(&path, fresh).unwrap();
    } else {
        assert!(
            text == fresh,
            "README.md is stale; run this with LOCK_REWRITE=1"
        );
    }
}
