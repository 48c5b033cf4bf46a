//! The list of field cases says the truth: every number is there for every backend, what it names
//! exists, and no case of the suite is missing from it.

#![allow(clippy::unwrap_used, reason = "a test program")]

use std::collections::BTreeSet;
use std::path::Path;

use conformance_tests::{BACKENDS, CASES, Case, Catalogue, Cell, FieldCase};

/// The numbers of the field cases; those between were merged into others.
const NUMBERS: [u16; 106] = [
    1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 25, 26, 27, 28, 30,
    31, 32, 34, 35, 36, 37, 38, 39, 40, 41, 43, 44, 46, 48, 49, 50, 51, 55, 56, 57, 58, 59, 60, 61,
    63, 64, 65, 67, 69, 70, 72, 73, 74, 75, 76, 78, 79, 80, 81, 82, 84, 85, 87, 88, 89, 90, 93, 94,
    95, 96, 97, 98, 100, 102, 104, 105, 106, 107, 108, 111, 112, 114, 117, 119, 120, 121, 123, 124,
    125, 126, 127, 129, 130, 131, 132, 133, 135, 136, 137, 139,
];

fn each_cell() -> impl Iterator<Item = (&'static FieldCase, &'static str, &'static Cell)> {
    Catalogue::shared().field_cases().iter().flat_map(|field| {
        BACKENDS.iter().map(move |backend| {
            let cell = field.cell(backend);
            (
                field,
                *backend,
                cell.unwrap_or_else(|| panic!("case {} has no cell for {backend}", field.number)),
            )
        })
    })
}

#[test]
fn every_field_case_has_one_place() {
    let listed: Vec<u16> = Catalogue::shared()
        .field_cases()
        .iter()
        .map(|f| f.number)
        .collect();
    assert_eq!(listed, NUMBERS);
    for field in Catalogue::shared().field_cases() {
        for backend in field.own.keys() {
            assert!(
                BACKENDS.contains(&backend.as_str()),
                "case {} names the backend {backend}",
                field.number
            );
        }
    }
    for backend in Catalogue::shared().pending() {
        assert!(BACKENDS.contains(&backend.as_str()), "pending: {backend}");
    }
}

#[test]
fn every_cell_says_one_thing() {
    for (field, backend, cell) in each_cell() {
        let proven = !cell.run.is_empty() || !cell.tests.is_empty() || cell.later.is_some();
        assert!(
            proven != cell.not_applicable.is_some(),
            "case {} on {backend}: {cell:?}",
            field.number
        );
        for reason in cell.later.iter().chain(&cell.not_applicable) {
            assert!(reason.len() > 5, "case {} on {backend}", field.number);
        }
    }
}

#[test]
fn what_a_cell_names_exists_and_applies() {
    for (field, backend, cell) in each_cell() {
        for name in &cell.run {
            let n = field.number;
            let case = Case::named(name).unwrap_or_else(|| panic!("{n} names the case {name}"));
            assert!(
                case.numbers.contains(&n),
                "{name} does not say that it covers {n}"
            );
            let exempt = Catalogue::shared().exemption(name, backend);
            assert!(
                exempt.is_none(),
                "{n} on {backend} is proven by {name}, which does not apply there"
            );
        }
    }
}

#[test]
fn tests_outside_the_suite_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    if !root.join("lock-core/tests").exists() {
        println!("SKIPPED: the suite stands outside its workspace");
        return;
    }
    let named: BTreeSet<&String> = each_cell().flat_map(|(_, _, cell)| &cell.tests).collect();
    for place in named {
        let (file, test) = place.split_once("::").unwrap();
        let text = std::fs::read_to_string(root.join(file))
            .unwrap_or_else(|error| panic!("{place}: {error}"));
        assert!(
            text.contains(&format!("fn {test}(")),
            "{place} does not exist"
        );
    }
}

#[test]
fn every_case_of_the_suite_is_in_the_list() {
    let mut names = BTreeSet::new();
    for case in CASES {
        assert!(names.insert(case.name), "{} is there twice", case.name);
        assert!(case.proves.len() > 20, "{} says what it proves", case.name);
        for number in case.numbers {
            let run = each_cell().any(|(field, _, cell)| {
                field.number == *number && cell.run.iter().any(|name| name == case.name)
            });
            assert!(
                run,
                "{} covers {number}, and the list does not know",
                case.name
            );
        }
    }
    for (case, backend, reason) in Catalogue::shared().exemptions() {
        assert!(Case::named(case).is_some(), "exempt: {case}");
        assert!(BACKENDS.contains(&backend), "exempt: {backend}");
        assert!(reason.len() > 5, "exempt: {case} on {backend}");
    }
}
