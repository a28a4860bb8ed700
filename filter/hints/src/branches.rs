//! The conditional branches of a module: counting which way they go, and the section that says so.

use anyhow::{Context, Result, bail};
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    BranchHint, BranchHints, CodeSection, Encode, EntityType, ImportSection, Instruction, Section, TypeSection, ValType,
};
use wasmparser::{FunctionBody, ImportSectionReader, Operator, Parser, Payload, TypeRef, TypeSectionReader};

/// What a counting module imports: `(condition, branch) -> condition`.
pub(crate) const NOTE: (&str, &str) = ("hints", "note");

/// The custom section that holds hints.
const SECTION: &str = "metadata.code.branch_hint";

/// A branch that came less often says nothing.
const MIN_TIMES: u64 = 32;
/// One in so many may go the other way.
const ONE_IN: u64 = 50;

/// A conditional branch (`if` or `br_if`; other forms cannot be hinted).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Branch {
    function: u32,
    /// Bytes from the beginning of the function's body to the instruction.
    offset: u32,
}

/// How often a branch came, and how often its condition held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) times: u64,
    pub(crate) held: u64,
}

impl Count {
    /// The way it goes, where it hardly ever goes the other.
    fn way(self) -> Option<bool> {
        let rare = |times: u64| times * ONE_IN <= self.times;
        match self.times {
            ..MIN_TIMES => None,
            _ if rare(self.held) => Some(false),
            _ if rare(self.times - self.held) => Some(true),
            _ => None,
        }
    }
}

/// A module that tells [`NOTE`] of each branch that it comes to.
pub(crate) struct Counted {
    pub(crate) module: Vec<u8>,
    /// By the numbers that it tells.
    pub(crate) branches: Vec<Branch>,
}

/// Makes it.
///
/// # Errors
/// When the module cannot be read.
pub(crate) fn counted(module: &[u8]) -> Result<Counted> {
    let mut counter = Counter { imported: imported(module)?, types: 0, function: 0, branches: Vec::new() };
    counter.function = counter.imported;
    let mut counted = wasm_encoder::Module::new();
    counter.parse_core_module(&mut counted, Parser::new(0), module).context("the module cannot be rewritten")?;
    Ok(Counted { module: counted.finish(), branches: counter.branches })
}

/// The branches that hardly ever go the other way, and the way that they go.
pub(crate) fn one_sided(branches: &[Branch], counts: &[Count]) -> Vec<(Branch, bool)> {
    branches.iter().zip(counts).filter_map(|(branch, count)| Some((*branch, count.way()?))).collect()
}

/// The module with a section of hints before its code.
///
/// # Errors
/// When the module cannot be read, or has hints.
pub(crate) fn hinted(module: &[u8], one_sided: &[(Branch, bool)]) -> Result<Vec<u8>> {
    let mut hints = BranchHints::new();
    for of_one in one_sided.chunk_by(|(one, _), (next, _)| one.function == next.function) {
        let hint = |(branch, way): &(Branch, bool)| BranchHint {
            branch_func_offset: branch.offset,
            branch_hint_value: u32::from(*way),
        };
        if let [(first, _), ..] = of_one {
            hints.function_hints(first.function, of_one.iter().map(hint));
        }
    }
    let mut section = vec![hints.id()];
    hints.encode(&mut section);
    let code = code_begins(module)?;
    let (before, after) = module.split_at_checked(code).context("the module ends before its code")?;
    Ok([before, &section, after].concat())
}

/// Functions that the module imports.
fn imported(module: &[u8]) -> Result<u32> {
    let mut count = 0;
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::ImportSection(section) = payload? {
            for import in section.into_imports() {
                count += u32::from(matches!(import?.ty, TypeRef::Func(_)));
            }
        }
    }
    Ok(count)
}

/// Where the code section's header is.
fn code_begins(module: &[u8]) -> Result<usize> {
    let mut end_before: u64 = 8;
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::CustomSection(section) if section.name() == SECTION => {
                bail!("the module has branch hints already")
            }
            Payload::CodeSectionStart { .. } => return Ok(end_before.try_into()?),
            other => end_before = other.as_section().map_or(end_before, |(_, range)| range.end),
        }
    }
    bail!("the module has no code")
}

/// Rewrites a module into one that counts. The import that it adds is the last one, so the functions after the imports move up by one.
struct Counter {
    imported: u32,
    types: u32,
    /// The next whose body comes.
    function: u32,
    branches: Vec<Branch>,
}

impl Reencode for Counter {
    type Error = std::convert::Infallible;

    fn function_index(&mut self, function: u32) -> Result<u32, Error<Self::Error>> {
        Ok(if function < self.imported { function } else { function + 1 })
    }

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: TypeSectionReader<'_>,
    ) -> Result<(), Error<Self::Error>> {
        utils::parse_type_section(self, types, section)?;
        self.types = types.len();
        types.ty().function([ValType::I32, ValType::I32], [ValType::I32]);
        Ok(())
    }

    fn parse_import_section(
        &mut self,
        imports: &mut ImportSection,
        section: ImportSectionReader<'_>,
    ) -> Result<(), Error<Self::Error>> {
        utils::parse_import_section(self, imports, section)?;
        imports.import(NOTE.0, NOTE.1, EntityType::Function(self.types));
        Ok(())
    }

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: FunctionBody<'_>,
    ) -> Result<(), Error<Self::Error>> {
        let begins = body.range().start;
        let mut function = self.new_function_with_parsed_locals(&body)?;
        for operator in body.get_operators_reader()?.into_iter_with_offsets() {
            let (operator, at) = operator?;
            if matches!(operator, Operator::If { .. } | Operator::BrIf { .. }) {
                function.instruction(&Instruction::I32Const(self.branches.len() as i32));
                function.instruction(&Instruction::Call(self.imported));
                self.branches.push(Branch { function: self.function, offset: (at - begins) as u32 });
            }
            let instruction = self.instruction(operator)?;
            function.instruction(&instruction);
        }
        code.function(&function);
        self.function += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two branches: one for a loop that hardly ever ends, one that goes either way; and an import, so that numbers move.
    const TEXT: &str = r#"(module
        (import "env" "other" (func $other (param i32)))
        (func $count (export "count") (param i32) (result i32)
            (local i32)
            loop $again
                local.get 1
                i32.const 1
                i32.and
                if
                    local.get 1
                    call $other
                end
                local.get 1
                i32.const 1
                i32.add
                local.tee 1
                local.get 0
                i32.lt_u
                br_if $again
            end
            local.get 1)
        (func (export "unused") (param i32)
            local.get 0
            if
            end))"#;

    fn module() -> Vec<u8> {
        wat::parse_str(TEXT).unwrap()
    }

    /// Calls `count` in an engine, and returns what it returns and how each branch went.
    fn run(module: &[u8], branches: usize, until: i32) -> (i32, Vec<Count>) {
        let engine = wasmi::Engine::default();
        let mut store = wasmi::Store::new(&engine, vec![Count::default(); branches]);
        let mut linker = wasmi::Linker::new(&engine);
        linker.func_wrap("env", "other", |_: i32| {}).unwrap();
        let note = |mut caller: wasmi::Caller<'_, Vec<Count>>, condition: i32, branch: i32| {
            let count = &mut caller.data_mut()[branch as usize];
            count.times += 1;
            count.held += u64::from(condition != 0);
            condition
        };
        linker.func_wrap(NOTE.0, NOTE.1, note).unwrap();
        let module = wasmi::Module::new(&engine, module).unwrap();
        let instance = linker.instantiate_and_start(&mut store, &module).unwrap();
        let count = instance.get_typed_func::<i32, i32>(&store, "count").unwrap();
        let returned = count.call(&mut store, until).unwrap();
        (returned, store.into_data())
    }

    #[test]
    fn counting_changes_nothing_but_that_it_counts() {
        let counted = counted(&module()).unwrap();
        assert_eq!(counted.branches.len(), 3);
        let (plain, _) = run(&module(), 0, 100);
        let (returned, counts) = run(&counted.module, 3, 100);
        assert_eq!(returned, plain);
        let count = |times, held| Count { times, held };
        assert_eq!(counts, [count(100, 50), count(100, 99), count(0, 0)]);
    }

    #[test]
    fn what_hardly_ever_goes_the_other_way_is_hinted_where_it_stands() {
        let module = module();
        let counted = counted(&module).unwrap();
        let (_, counts) = run(&counted.module, 3, 100);
        let hinted = super::hinted(&module, &one_sided(&counted.branches, &counts)).unwrap();
        let twice = super::hinted(&hinted, &[]).unwrap_err();
        assert_eq!(twice.to_string(), "the module has branch hints already");
        assert_eq!(run(&hinted, 0, 100), run(&module, 0, 100));
        let mut hints = Vec::new();
        let mut bodies = Vec::new();
        for payload in Parser::new(0).parse_all(&hinted) {
            match payload.unwrap() {
                Payload::CustomSection(section) => {
                    if let wasmparser::KnownCustom::BranchHints(section) = section.as_known() {
                        assert!(bodies.is_empty(), "hints come before the code");
                        for function in section {
                            let function = function.unwrap();
                            for hint in function.hints {
                                let hint = hint.unwrap();
                                hints.push((function.func, hint.func_offset, hint.taken));
                            }
                        }
                    }
                }
                Payload::CodeSectionEntry(body) => bodies.push(body),
                _ => {}
            }
        }
        let [(function, offset, taken)] = hints[..] else { panic!("{hints:?}") };
        assert!(taken && function == 1, "the loop, in the function behind the import: {hints:?}");
        let at = bodies[0].range().start + u64::from(offset);
        let operators = bodies[0].get_operators_reader().unwrap().into_iter_with_offsets();
        let (operator, _) = operators.map(Result::unwrap).find(|(_, offset)| *offset == at).unwrap();
        assert!(matches!(operator, Operator::BrIf { .. }), "{operator:?}");
    }

    #[test]
    fn what_is_seldom_seen_or_goes_both_ways_is_not_hinted() {
        for (times, held, way) in [
            (MIN_TIMES - 1, 0, None),
            (MIN_TIMES, 0, Some(false)),
            (MIN_TIMES, MIN_TIMES, Some(true)),
            (100, 2, Some(false)),
            (100, 3, None),
            (100, 98, Some(true)),
            (100, 97, None),
        ] {
            assert_eq!(Count { times, held }.way(), way, "{held} of {times}");
        }
    }

    #[test]
    fn what_is_no_module_is_told() {
        assert!(counted(b"nothing").is_err());
        assert!(hinted(b"nothing", &[]).is_err());
        let without_code = wat::parse_str("(module)").unwrap();
        assert!(hinted(&without_code, &[]).is_err());
    }
}
