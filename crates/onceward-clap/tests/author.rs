//! What an author gets wrong does not compile, and the compiler says what to do.

#[test]
fn mistakes_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/author/*.rs");
}
