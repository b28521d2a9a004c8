"""Public functions without a sample call in `tests/test_front_door.py`, by the reason."""

WITHOUT = {
    "Commands: their arguments come through tyro, and tests/cli has what they refuse.": """
        answer_text answered ask described_contexts finding_of answer_notes own_answers profiled
        require_foil require_model require_page write_profile write_profile_page
        announced averaged_records choose_contexts duration record_lines report_explanations stem
        words write_pages
        cli.compare cli.explain counterexamples first_accounts first_contexts
        measuring_seconds
        keep_programs
        averaged_orders context_names main part_text parts_of two_way_cells
        measured_contexts network_within noted profile
        rates read_contexts read_contexts_of read_prompts record_shares reproduce run_folder
        finished_before
        save_figure shuffled_findings shuffled_lines shuffled_shares shuffled_table
        write_contexts write_findings write_json write_shuffled write_table
    """,
    "Refusals, which are what is tested; and what they are made of.": """
        adjoint.compare all_known counted_depth counted_steps density.require_pair embedded
        guarded_density guarded_positions guarded_times half_digits judged known
        losses_and_adjoints network.require_pair number_lines refuse_options
        require_attention require_batch
        require_concrete require_continuous require_depth_profile
        require_drawable require_finite require_fitting require_flow require_grid
        require_heads require_heads_divide require_messages require_query_weights
        require_question require_windows
        require_horizon require_on_grid require_profile
        require_regions require_shape require_sites
        refuse_other_architectures refuse_unknown require_lipschitz require_resnet_premises
        require_smooth require_state
        require_tensor require_width require_window scalar_loss
    """,
    "Parts of the readers of checkpoints, whose files tests/models breaks.": """
        across_heads afmoe alibi_slopes apart arcee architecture_of bias biased biases_of bloom
        bloom_gelu by_expert chosen cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 every
        exact_gelu exaone4
        as_published energies_by_layers falcon fetched fingerprint kept spread states_size
        whole_rows
        models.gated gathered gemma gemma2 gemma3_text glm glm4 gpt2 gpt_neo gpt_neox gpt_oss
        gptj granite granitemoe helium hunyuan_v1_dense inside joined joined_by_group
        jointly_gated layer_kinds layer_norm layer_norm_from_one layer_norm_without_shift llama
        llama4_text llama_like matrix ministral mistral mixed mixtral multipliers nemotron norm_of
        number of_each_head of_each_head_apart of_matrices olmo2 olmo3 one_for_all_heads opt phi
        phi3 models.plain positive profile_memory
        projected put qwen2 qwen3 qwen3_moe read_decoder rms_norm
        rms_norm_from_one rope_options rotary_of seed_oss sizes_of sliding smollm3 spans
        squared_relu stablelm stacked starcoder2 tanh_gelu through_latents together
        together_by_turns together_by_width trained_length unfilled unpaired whole yarn_weights
        of_eight_bits of_four_bits published_config published_names quantisation_of recipe_of
        json_object padded_size text_part
    """,
    "Parts of figures, pages and sentences, given numbers of the library's own.": """
        report.contrast depth_chart digits draw_averages draw_densities
        error_band
        fit_scale
        blocks_of head_chart ink label_ends legend_below line_style
        error_in_words error_words held_by_text joined_tokens most_in_words page_of part_words
        parts_finding percent records_finding
        new_figure parts_shares points_in_words positive_part
        shade_boundaries shading share_chart
        short show simulation_convergence simulation_influence_profiles
        simulation_observability_profiles simulation_probe_errors spans_decades places_by_name
        with_error
        write_page
    """,
    "The studies that the paper's own tables run, on fields of the library's own.": """
        adam_run algorithm1_objective algorithm3_objective attention_constant
        attention_studies beyond_the_paper cesaro_study doubt
        fourth_moment_studies polynomial_twins remarks comparison_table cone_mass_study
        depth_costs paper.gated gaussian_attention groups influence_averages influence_imbalance
        input_adjoint_depth_studies input_adjoint_studies largest_control_distances
        left_cone_mass_study linear_knots loss_study
        measure minimiser paper.compare position_costs printed_cone_mass_study
        proved_constants readout_bound readout_consistency_study reference_flows right_biased
        sampled_profile section4 shadowing_study singularity_study
        smooth_labels smooth_states split_defect_study split_gap_study summary table_row
        terminal_adjoint_study terminal_covector time_slope_bounds trace_density
        trajectory_studies
    """,
    "Parts of attention, in programs that are being traced: blocks and rows are the library's.": """
        capped affine of_heads project score_slopes spans_of spelt
        column_blocks column_mass each_vector in_groups outputs_or over_tiles pulled_or
        squared_operator_norms tiled_attention
        advanced after_context after_id flowed weights_of_rows
    """,
    "Parts of an explanation, given its own numbers.": """
        asked_of_windows carried_to density_rows index_lines parts_of_ids primacy_of_the_cone
        linearised_stages pull_back_hops regional_lines survival_of_recency
    """,
    "Takes anything: says what it is, or looks at its shape alone.": """
        attention_of keeps kind_of unit_profile written_causal
    """,
    "Not refused in words yet: what is no network, ids or batch.": """
        context_of_line find_chat_template models.contrast_loss rendered self_answered
    """,
}
