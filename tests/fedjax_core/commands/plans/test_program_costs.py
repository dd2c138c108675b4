"""What a compiled text says, with its loops."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedjax_core.commands.plans import program_costs

ROWS = program_costs.ClientLoops(np.array([10, 10]))
TEXT = """HloModule jit_f, is_scheduled=true

%region_0.1 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

%taken (param_0: f32[1000,8], param_1: s32[]) -> f32[1,8] {
  %param_0 = f32[1000,8]{1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  ROOT %slice.1 = f32[1,8]{1,0} dynamic-slice(%param_0, %param_1), dynamic_slice_sizes={1,8}
}

%steps (p: (s32[], f32[64], f32[1000,8])) -> (s32[], f32[64], f32[1000,8]) {
  %p = (s32[], f32[64]{0}, f32[1000,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[64]{0} get-tuple-element(%p), index=1
  %rows = f32[1000,8]{1,0} get-tuple-element(%p), index=2
  %row = f32[1,8]{1,0:S(1)} fusion(%rows, %i), kind=kLoop, calls=%taken
  %sum = f32[64]{0} all-reduce(%x), replica_groups={}, to_apply=%region_0.1
  ROOT %tuple.1 = (s32[], f32[64]{0}, f32[1000,8]{1,0}) tuple(%i, %sum, %rows)
}

%more (q: (s32[], f32[64], f32[1000,8])) -> pred[] {
  %q = (s32[], f32[64]{0}, f32[1000,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %limit = s32[] get-tuple-element(%q), index=0
  ROOT %lt = pred[] compare(%j, %limit), direction=LT
}

%epochs (e: (s32[], f32[64], f32[1000,8])) -> (s32[], f32[64], f32[1000,8]) {
  %e = (s32[], f32[64]{0}, f32[1000,8]{1,0}) parameter(0)
  ROOT %while.2 = (s32[], f32[64]{0}, f32[1000,8]{1,0}) while(%e), condition=%more, body=%steps, metadata={op_name="LOOP/while"}
}

%three (t: (s32[], f32[64], f32[1000,8])) -> pred[] {
  %t = (s32[], f32[64]{0}, f32[1000,8]{1,0}) parameter(0)
  %k = s32[] get-tuple-element(%t), index=0
  %constant.3 = s32[] constant(3)
  ROOT %lt.1 = pred[] compare(%k, %constant.3), direction=LT
}

ENTRY %main (arg: f32[64], data: f32[1000,8]) -> f32[128] {
  %arg = f32[64]{0} parameter(0)
  %data = f32[1000,8]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[64]{0}, f32[1000,8]{1,0}) tuple(%zero, %arg, %data)
  %while.1 = (s32[], f32[64]{0}, f32[1000,8]{1,0}) while(%start), condition=%three, body=%epochs, metadata={op_name="jit(f)/while"}
  %out = f32[64]{0} get-tuple-element(%while.1), index=1
  %gather.1 = (f32[64]{0}, f32[128]{0}) all-gather-start(%out), dimensions={0}
  ROOT %gather.2 = f32[128]{0} all-gather-done(%gather.1)
}
"""


def test_a_compiled_text_is_read_with_its_loops():
    program = program_costs.Program(TEXT.replace("LOOP", "jit(f)/while/body/batches_of_4"))
    steps = 3 * 3  # the constant of a condition, and ten rows in batches of four
    assert program.count_collectives(ROWS.trip_count) == [
        program_costs.Collective("all-gather", 1, 128 * 4),
        program_costs.Collective("all-reduce", steps, steps * 64 * 4),
    ]
    of_a_step = 8 * 4 + 4 + 2 * 64 * 4  # a row, not all of them; its place; the sum in and out. The row's copy lies near the cores
    assert program.count_traffic(ROWS.trip_count) == steps * of_a_step + (64 + 128) * 4


def test_of_slices_the_part_is_counted_in_fusions_of_fusions_too():
    """As the TPU's compiler writes a layer of stacked ones: the slice of its kernels lies in a fusion within the product's."""
    outer = """%outer (param_2: f32[1000,8], param_3: s32[]) -> f32[1,8] {
  %param_2 = f32[1000,8]{1,0} parameter(0)
  %param_3 = s32[] parameter(1)
  %flat = f32[1000,8]{1,0} bitcast(%param_2)
  %inner = f32[1,8]{1,0} fusion(%flat, %param_3), kind=kLoop, calls=%taken
  ROOT %twice = f32[1,8]{1,0} add(%inner, %inner)
}

%kept (param_4: f32[1000,8], param_5: f32[1,8], param_6: s32[]) -> f32[1000,8] {
  %param_4 = f32[1000,8]{1,0} parameter(0)
  %param_5 = f32[1,8]{1,0} parameter(1)
  %param_6 = s32[] parameter(2)
  %put = f32[1000,8]{1,0} dynamic-update-slice(%param_4, %param_5, %param_6, %param_6)
  ROOT %as = f32[1000,8]{1,0} bitcast(%put)
}

%steps"""
    text = TEXT.replace("LOOP", "batches_of_4").replace("calls=%taken", "calls=%outer").replace("%steps", outer, 1)
    assert program_costs.Program(text).count_traffic(ROWS.trip_count) == program_costs.Program(
        TEXT.replace("LOOP", "batches_of_4")
    ).count_traffic(ROWS.trip_count)
    put = "  %all = f32[1000,8]{1,0} fusion(%rows, %row, %i), kind=kLoop, calls=%kept\n  %sum = "
    more = program_costs.Program(text.replace("  %sum = ", put)).count_traffic(ROWS.trip_count) - program_costs.Program(
        text
    ).count_traffic(ROWS.trip_count)
    assert more == 9 * (8 * 4 + 4)  # the row that is written, and its place; not the other 999


def test_an_exchange_that_is_spread_over_a_loop_counts_once():
    """As the TPU's compiler writes it: parts with one `chain_id`, before, in and after the loop."""
    part = '%part = f32[64]{0} all-gather(%x), frontend_attributes={chain_id="0"}'
    text = TEXT.replace("LOOP", "batches_of_4").replace("  %row = ", f"  {part}\n  %row = ")
    text = text.replace("  %zero = ", f"  {part.replace('%x', '%arg')}\n  %zero = ")
    found = {one.kind: one for one in program_costs.Program(text).count_collectives(ROWS.trip_count)}
    assert found["all-gather"] == program_costs.Collective("all-gather", 2, 64 * 4 + 128 * 4)


def test_a_sum_over_devices_is_found_in_a_real_program():
    mesh = jax.make_mesh((2,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])

    def scanned(x):
        return jax.lax.scan(lambda total, _: (jax.lax.psum(total + x, "clients"), None), x, length=5)[0]

    spread = PartitionSpec("clients")
    f = jax.shard_map(scanned, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)
    compiled = jax.jit(f).lower(jax.ShapeDtypeStruct((2, 16), jnp.float32)).compile()
    assert program_costs.Program(compiled.as_text() or "").count_collectives(ROWS.trip_count) == [
        program_costs.Collective("all-reduce", 5, 5 * 64)
    ]
