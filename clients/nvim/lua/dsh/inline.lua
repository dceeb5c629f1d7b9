--- One line of input that stands on a line of the sidebar, for a label.
local M = {}

local WIDTH = 32

---@param win integer window on whose cursor line it stands
---@param options { title: string, text: string }
---@param callback fun(text: string) called when the person confirms
function M.ask(win, options, callback)
  local buf = vim.api.nvim_create_buf(false, true)
  vim.bo[buf].bufhidden = "wipe"
  vim.bo[buf].modeline = false
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, { options.text })
  local width = math.min(WIDTH, vim.api.nvim_win_get_width(win) - 4)
  local float = vim.api.nvim_open_win(buf, true, {
    relative = "win",
    win = win,
    row = vim.api.nvim_win_call(win, vim.fn.winline) - 2,
    col = vim.api.nvim_win_get_width(win) - width - 2,
    width = width,
    height = 1,
    style = "minimal",
    border = "single",
    title = " " .. options.title .. " ",
  })
  local done = false
  ---@param text? string
  local function close(text)
    if done then
      return
    end
    done = true
    vim.cmd.stopinsert()
    if vim.api.nvim_win_is_valid(float) then
      vim.api.nvim_win_close(float, true)
    end
    if vim.api.nvim_win_is_valid(win) then
      vim.api.nvim_set_current_win(win)
    end
    if text then
      callback(text)
    end
  end
  local function confirm()
    close(vim.api.nvim_buf_get_lines(buf, 0, 1, false)[1])
  end
  local function cancel()
    close()
  end
  vim.keymap.set({ "n", "i" }, "<CR>", confirm, { buffer = buf })
  vim.keymap.set({ "n", "i" }, "<Esc>", cancel, { buffer = buf, nowait = true })
  vim.keymap.set({ "n", "i" }, "<C-c>", cancel, { buffer = buf, nowait = true })
  vim.api.nvim_create_autocmd("WinLeave", { buffer = buf, once = true, callback = cancel })
  vim.cmd("startinsert!")
end

return M
