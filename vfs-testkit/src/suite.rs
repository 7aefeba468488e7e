//! [`crate::conformance!`]: a test for each case.

/// Makes a `#[test]` of each case of [`crate::cases`], in a module per area. `$make` is a function
/// that makes a fresh [`crate::Subject`].
#[macro_export]
macro_rules! conformance {
    ($make:path) => {
        $crate::each_case!($crate::conformance, $make);
    };
    (@area $make:path; $area:ident: $($case:ident)*) => {
        mod $area {
            use super::*;
            $(
                #[test]
                fn $case() {
                    let name = concat!(stringify!($area), "::", stringify!($case));
                    $crate::Bed::run(name, $crate::cases::$area::$case, $make());
                }
            )*
        }
    };
}
