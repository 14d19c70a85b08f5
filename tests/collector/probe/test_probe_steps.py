# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import sys
import unittest
import weakref
from collections.abc import Sequence
from typing import Optional

from tidegauge.probe.step_counting.steps import MAX_ROUND, StepCounter, inside_another_step, stepped_key


def due_at(keys: Sequence[int]) -> tuple[StepCounter, list[int]]:
    """Feed hook calls, each key an optimizer of its own; the counter, and at which of them a record was due."""
    return due_of([(key, key) for key in keys])


def due_of(calls: Sequence[tuple[int, int]]) -> tuple[StepCounter, list[int]]:
    """The same for calls of (key, owner)."""
    counter = StepCounter()
    return counter, [at for at, call in enumerate(calls) if counter.optimizer_stepped(*call, nested=False)]


class CountingSteps(unittest.TestCase):
    def test_step_counter_counts_every_call_of_a_single_optimizer(self) -> None:
        counter, due = due_at([1] * 5)
        self.assertEqual((counter.steps, counter.raw_steps, due), (5, 5, [0, 1, 2, 3, 4]))

    def test_two_optimizers_in_turn_make_one_step_recorded_at_the_second(self) -> None:
        counter, due = due_at([1, 2] * 4)
        self.assertEqual((counter.steps, counter.raw_steps), (4, 8))
        self.assertEqual(due, [0, 3, 5, 7])

    def test_optimizer_in_backward_is_recorded_when_the_last_parameter_was_stepped(self) -> None:
        counter, due = due_at(list(range(1000)) * 3)
        self.assertEqual((counter.steps, counter.raw_steps), (3, 3000))
        self.assertEqual(due, [0, 1999, 2999])

    def test_no_round_is_recorded_twice(self) -> None:
        _, due = due_at([1, 2, 3, 2, 1, 3, 3, 1, 2] * 10)
        rounds = StepCounter()
        seen = []
        for at, key in enumerate([1, 2, 3, 2, 1, 3, 3, 1, 2] * 10):
            rounds.optimizer_stepped(key, key, nested=False)
            if at in due:
                seen.append(rounds.steps)
        self.assertEqual(len(seen), len(set(seen)))

    def test_discriminator_stepped_five_times_for_each_generator_step_still_counts_every_round(self) -> None:
        counter, due = due_at([1, 1, 1, 1, 1, 2] * 4)
        self.assertEqual(counter.steps, 20)
        self.assertGreaterEqual(len(due), 15)

    def test_an_optimizer_that_is_given_up_does_not_stop_the_records(self) -> None:
        _, due = due_at([1, 2] * 3 + [1] * 6)
        self.assertEqual(due[-4:], [8, 9, 10, 11])

    def test_a_parameter_that_takes_anothers_place_costs_no_step(self) -> None:
        counter, due = due_of([(key, 7) for key in (1, 1, 1, 2, 2, 2, 1, 1, 3, 3)])
        self.assertEqual((counter.steps, due), (10, list(range(10))))

    def test_a_parameter_that_takes_anothers_place_in_one_of_two_groups_costs_no_step(self) -> None:
        counter, due = due_of([(key, 7) for key in (1, 2, 1, 2, 3, 2, 3, 2, 3, 4, 3, 4)])
        self.assertEqual(counter.steps, 6)
        self.assertEqual(due, [0, 3, 5, 7, 11])

    def test_the_groups_of_one_optimizer_make_one_step_from_the_first_round_on(self) -> None:
        counter, _ = due_of([(key, 7) for key in (1, 2, 3) * 4])
        self.assertEqual(counter.steps, 4)

    def test_nested_call_is_counted_raw_only(self) -> None:
        counter = StepCounter()
        due = [counter.optimizer_stepped(1, 1, nested=nested) for nested in (True, False) * 3]
        self.assertEqual((counter.steps, counter.raw_steps), (3, 6))
        self.assertEqual(due, [False, True] * 3)

    def test_a_program_with_new_parameters_for_every_step_is_not_one_endless_round(self) -> None:
        counter, _ = due_at(range(3 * MAX_ROUND))
        self.assertEqual(counter.steps, 3)

    def test_explicit_steps_replace_those_of_the_hooks(self) -> None:
        counter = StepCounter()
        for _ in range(4):
            counter.optimizer_stepped(1, 1, nested=False)
            counter.optimizer_stepped(2, 2, nested=False)
            counter.explicit_step()
        self.assertEqual((counter.steps, counter.raw_steps), (4, 8))

    def test_explicit_steps_count_without_any_optimizer(self) -> None:
        counter = StepCounter()
        for _ in range(3):
            counter.explicit_step()
        self.assertEqual((counter.steps, counter.raw_steps), (3, 0))


class Parameter:
    pass


class Optimizer:
    """Weakly referable, as torch's; made and dropped at once, one gets the address of another."""

    def __init__(self, parameter: Optional[Parameter] = None) -> None:
        self.param_groups: list[dict[str, object]] = [{"params": [parameter or Parameter()]}]


class TellingNewOptimizersFromOldOnes(unittest.TestCase):
    def setUp(self) -> None:
        self.counter = StepCounter()
        self.records = 0

    def step(self, *optimizers: Optimizer) -> None:
        for optimizer in optimizers:
            self.records += self.counter.optimizer_stepped(stepped_key(optimizer), optimizer, nested=False)

    def assert_counted(self, steps: int) -> None:
        self.assertEqual((self.counter.steps, self.records), (steps, steps))

    def test_a_new_model_for_every_step_makes_a_step_of_each(self) -> None:
        optimizer = Optimizer()
        for _ in range(2000):
            self.step(optimizer)
            optimizer = Optimizer()  # made before the old one goes: two addresses by turns
        self.assert_counted(2000)

    def test_a_new_model_at_the_address_of_the_last_makes_a_step(self) -> None:
        for _ in range(2000):
            self.step(Optimizer())
        self.assert_counted(2000)

    def test_a_new_model_every_third_step_makes_a_step_of_each(self) -> None:
        for _ in range(500):
            optimizer = Optimizer()
            for _ in range(3):
                self.step(optimizer)
        self.assert_counted(1500)

    def test_a_new_optimizer_for_another_parameter_of_a_model_that_stays_makes_a_step(self) -> None:
        layers = [Parameter() for _ in range(5)]
        for at in range(500):
            self.step(Optimizer(layers[at % 5]))
        self.assert_counted(500)

    def test_an_inner_optimizer_for_each_task_and_an_outer_one_that_stays_make_one_step(self) -> None:
        outer = Optimizer()
        for _ in range(1000):
            self.step(Optimizer(), outer)
        self.assertIn(self.counter.steps, (1000, 1001))  # at first, nobody knows the outer one
        self.assertGreaterEqual(self.records, 999)

    def test_a_gan_whose_models_are_both_made_anew_makes_one_step_of_both(self) -> None:
        generator = discriminator = None
        for _ in range(500):
            generator = Optimizer()
            self.step(generator)
            discriminator = Optimizer()
            self.step(discriminator)
        del generator, discriminator
        self.assert_counted(500)

    def test_a_population_of_which_one_is_replaced_makes_one_step_a_generation(self) -> None:
        population = [Optimizer() for _ in range(8)]
        for generation in range(200):
            self.step(*population)
            population[generation % 8] = Optimizer()
        self.assert_counted(200)

    def test_an_optimizer_that_dies_between_rounds_costs_no_step_of_those_that_stay(self) -> None:
        optimizers = [Optimizer() for _ in range(4)]
        for _ in range(10):
            self.step(*optimizers)
        del optimizers[1]
        for _ in range(10):
            self.step(*optimizers)
        self.assertEqual(self.counter.steps, 20)

    def test_no_optimizer_or_parameter_is_kept_alive(self) -> None:
        optimizer = Optimizer()
        alive = weakref.ref(optimizer), weakref.ref(stepped_key(optimizer))
        self.step(optimizer, Optimizer(), optimizer)
        del optimizer
        self.assertEqual([ref() for ref in alive], [None, None])

    def test_no_parameter_is_weakly_referenced_because_torch_refuses_to_swap_one_that_is(self) -> None:
        parameter = Parameter()
        self.step(Optimizer(parameter))
        self.assertEqual(weakref.getweakrefcount(parameter), 0)

    def test_step_counter_keeps_no_state_of_deleted_optimizers(self) -> None:
        for _ in range(100):
            self.step(Optimizer())
        counter = self.counter
        self.assertLessEqual(max(map(len, (counter._round, counter._before, counter._dead))), 2)


class Groups:
    def __init__(self, *groups: list[object]) -> None:
        self.param_groups: list[dict[str, object]] = [{"params": group} for group in groups]


class TellingHookCallsApart(unittest.TestCase):
    def test_wrapper_around_the_same_parameters_has_the_same_key(self) -> None:
        param = object()
        self.assertEqual(stepped_key(Groups([param])), stepped_key(Groups([param, object()])))

    def test_deepspeed_zero_1_swaps_groups_of_one_optimizer(self) -> None:
        first, second = object(), object()
        optimizer = Groups([first], [second])
        whole = optimizer.param_groups
        keys = []
        for group in (0, 1):
            optimizer.param_groups = [whole[group]]
            keys.append(stepped_key(optimizer))
        self.assertNotEqual(*keys)

    def test_deepspeed_zero_3_fills_one_group_at_a_time(self) -> None:
        optimizer = Groups([], [])
        partition = object()
        optimizer.param_groups[1]["params"] = [partition]
        self.assertIs(stepped_key(optimizer), partition)

    def test_optimizer_without_parameters_has_a_key_too(self) -> None:
        optimizer = Groups([])
        self.assertIs(stepped_key(optimizer), optimizer)


class SeeingNestedSteps(unittest.TestCase):
    def wrapper(self, depth: int, between: int = 0) -> bool:
        """Like torch's wrapper: runs an inner step first if there is to be one, and asks at its end."""
        if depth:
            self.answers.append(self.call_through(depth - 1, between))
        return inside_another_step(sys._getframe(0))

    def call_through(self, depth: int, between: int) -> bool:
        return self.call_through(depth, between - 1) if between else self.wrapper(depth)

    def setUp(self) -> None:
        self.answers: list[bool] = []

    def test_step_counter_treats_only_the_outermost_step_as_not_nested(self) -> None:
        outermost = self.wrapper(2)
        self.assertEqual((self.answers, outermost), ([True, True], False))

    def test_decorators_between_do_not_hide_the_outer_step(self) -> None:
        self.wrapper(1, between=4)
        self.assertEqual(self.answers, [True])


if __name__ == "__main__":
    unittest.main()
