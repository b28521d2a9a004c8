"""Public functions without a sample call in `tests/test_front_door.py`, by the reason."""

WITHOUT = {
    "Parts of the readers of checkpoints, whose files tests/checkpoints breaks.": """
        llama_like profile_memory read_decoder sizes_of
    """,
    "Parts of figures, pages and sentences, given numbers of the library's own.": """
        answer_page draw_densities legend_below line_style new_figure show simulation_convergence
        simulation_influence_profiles simulation_observability_profiles
        simulation_probe_errors write_page
    """,
    "The studies that the paper's own tables run, on fields of the library's own.": """
        attention_studies fourth_moment_studies cone_mass_study
        input_adjoint_depth_studies left_cone_mass_study loss_study measure
        proved_constants readout_bound readout_consistency_study section4 shadowing_study
        split_defect_study terminal_adjoint_study time_slope_bounds trajectory_studies
    """,
    "Parts of a method of attribution, given an answer's parts and a context's.": """
        scores_by_token
    """,
    "Not refused in words yet: what is no network, ids or batch.": """
        models.contrast_loss self_answered
    """,
}
